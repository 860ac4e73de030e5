# Brings NVRTC, which compiles CUDA sources without a GPU, where this machine has none. Source it: it sets KP_NVRTC.
#
# The version is that of the CUDA release kp is developed against, so that the resources that a check sees are the same everywhere.

nvrtc_version=13.0.88

# What kp finds by itself: by name, or in a toolkit.
has_nvrtc() {
    [ -n "${KP_NVRTC:-}" ] || [[ $(ldconfig -p 2>/dev/null) == *libnvrtc.so.1[23]* ]] ||
        compgen -G "${CUDA_HOME:-/usr/local/cuda}/lib64/libnvrtc.so.1[23]" >/dev/null
}

if ! has_nvrtc; then
    nvrtc_home=$PWD/target/ci-tools/nvrtc-$nvrtc_version
    if ! compgen -G "$nvrtc_home/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13" >/dev/null; then
        # The module is there on Debian without what it needs to make an environment with pip.
        if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            apt-get update -qq
            apt-get install -y -qq --no-install-recommends python3-venv
        fi
        rm -rf "$nvrtc_home"
        python3 -m venv "$nvrtc_home"
        "$nvrtc_home/bin/pip" install --quiet --disable-pip-version-check --no-deps "nvidia-cuda-nvrtc==$nvrtc_version"
    fi
    KP_NVRTC=$(dirname "$(compgen -G "$nvrtc_home/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13" | head -n 1)")
    export KP_NVRTC
fi
