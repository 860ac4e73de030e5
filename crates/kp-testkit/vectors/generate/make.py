"""Writes every golden vector again: ../formats and one folder per op.

    python make.py
"""

import shutil

import attention
import case
import elementwise
import formats
import gemm
import quantize

if __name__ == "__main__":
    for folder in case.VECTORS.iterdir():
        if folder.is_dir() and folder.name not in ("generate", "README.md"):
            shutil.rmtree(folder)
    for script in (formats, gemm, attention, elementwise, quantize):
        script.main()
