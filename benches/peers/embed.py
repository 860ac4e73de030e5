"""The embedding example beside PyTorch and ONNX Runtime on this machine's processor.

    python3 embed.py KP_EMBED MODEL [--threads 1,2] [--record FILE]

KP_EMBED is the program `kp-embed`, MODEL the folder of all-MiniLM-L6-v2 with its config.json. Needs torch, transformers and tokenizers;
onnx and onnxruntime take part if they are installed.

From the text of the hundred sentences of examples/embed to vectors of length 1, tokenizing included, one sentence after the other and all of
them given at once. A rival given all may sort them by length and cut them into batches as suits it best; every size is timed and the fastest
counts. kp and its rivals take turns of some seconds, and a ratio is the median of the turns' ratios, since what other programs of a shared machine
leave changes from one second to the next. How close a rival comes to PyTorch's vectors in f32 is
printed, since 8 bits are not the same to all: kp's `int8` has weights of 8 bits, `w8a8` activations too, as the rivals', and `int8q8` rounds
activations within products, a scale for each 32 of them.
"""

import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile, time
import torch, tokenizers, transformers

try:
    import onnx, onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
except ImportError:
    onnxruntime = None

torch.set_grad_enabled(False)
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/embed"
SENTENCES = (EXAMPLE / "reference/sentences.txt").read_text().removesuffix("\n").split("\n")
BATCHES = [1, 8, 16, 32, 100]


class Hidden(torch.nn.Module):
    """The last hidden states of a model, from what ONNX Runtime is given too."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        types = torch.zeros_like(ids)
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def embed(hidden, tokenizer, sentences, batch):
    """Vectors of `sentences` in their order; batches are of neighbours by length."""
    tokens = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    out = torch.empty(len(tokens), 384)
    for first in range(0, len(order), batch):
        some = order[first : first + batch]
        longest = max(len(tokens[i]) for i in some)
        ids = torch.tensor([tokens[i] + [0] * (longest - len(tokens[i])) for i in some])
        mask = torch.tensor([[1] * len(tokens[i]) + [0] * (longest - len(tokens[i])) for i in some])
        sums = (hidden(ids, mask).float() * mask[..., None]).sum(1)
        out[some] = torch.nn.functional.normalize(sums)
    return out


def rivals(model_dir, folder, threads):
    """For each precision of kp: name → what makes hidden states of ids and a mask."""

    def torch_model(dtype=torch.float32, attention="sdpa"):
        load = transformers.BertModel.from_pretrained
        return Hidden(load(model_dir, dtype=dtype, attn_implementation=attention, add_pooling_layer=False)).eval()

    found = {"f32": {"torch": torch_model()}, "bf16": {"torch": torch_model(torch.bfloat16)}}
    eight = torch.ao.quantization.quantize_dynamic(torch_model(), {torch.nn.Linear}, dtype=torch.qint8)
    found["int8"] = {"torch": eight}
    if onnxruntime:
        plain, fused, codes = (folder / name for name in ("plain.onnx", "fused.onnx", "codes.onnx"))
        example = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
        axes = {name: {0: "batch", 1: "tokens"} for name in ("ids", "mask", "hidden")}
        torch.onnx.export(torch_model(attention="eager"), example, plain, input_names=["ids", "mask"], output_names=["hidden"],
                          dynamic_axes=axes, dynamo=False, opset_version=17)
        optimizer.optimize_model(str(plain), model_type="bert", num_heads=12, hidden_size=384).save_model_to_file(str(fused))
        # What the optimizer fuses has no type that the quantizer could infer.
        types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(fused, codes, weight_type=QuantType.QInt8, per_channel=True, extra_options=types)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads

        def session(path):
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            return lambda ids, mask: torch.from_numpy(session.run(["hidden"], {"ids": ids.numpy(), "mask": mask.numpy()})[0])

        found["f32"] |= {"onnxruntime": session(plain), "onnxruntime fused": session(fused)}
        found["int8"] |= {"onnxruntime": session(codes)}
    found["w8a8"] = found["int8q8"] = found["int8"]
    return found


def median(run, seconds):
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(args, threads, folder):
    """Rows of one number of threads."""
    tokenizer = tokenizers.Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    found = rivals(args.model, folder, threads)
    wanted = embed(found["f32"]["torch"], tokenizer, SENTENCES, 1)

    def one_by_one(hidden):
        return median(lambda: [embed(hidden, tokenizer, [s], 1) for s in SENTENCES], args.seconds)

    def at_once(hidden, batch):
        return median(lambda: embed(hidden, tokenizer, SENTENCES, batch), args.seconds)

    for weights, some in found.items():
        if args.only not in ("", weights):
            continue
        about = {}
        for name, hidden in some.items():
            close = torch.nn.functional.cosine_similarity(embed(hidden, tokenizer, SENTENCES, 16), wanted).min().item()
            about[name] = {"cosine": close, "batch": min(BATCHES, key=lambda batch: at_once(hidden, batch))}
        command = [args.kp, "--time", "--weights", weights, "--device", "cpu", "--model", str(args.model)]
        environment = {**os.environ, "KP_THREADS": str(threads)}
        rates = {how: {name: [] for name in ("kp", *some)} for how in ("one by one", "at once")}
        for _ in range(args.turns):
            for name, hidden in some.items():
                rates["one by one"][name].append(len(SENTENCES) / one_by_one(hidden))
                rates["at once"][name].append(len(SENTENCES) / at_once(hidden, about[name]["batch"]))
            said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            said = [float(line.split()[-2]) for line in said.splitlines() if line.endswith("sentences/s")]
            for how, rate in zip(rates, said, strict=True):
                rates[how]["kp"].append(rate)
        for how, named in rates.items():
            ours = named.pop("kp")
            peers = {name: about[name] | {"rate": statistics.median(theirs),
                     "ratio": float(f"{statistics.median(us / them for us, them in zip(ours, theirs)):.4g}")}
                     for name, theirs in named.items()}
            best = min(peers, key=lambda name: peers[name]["ratio"])
            row = {"weights": weights, "threads": threads, "how": how, "sentences_per_s": statistics.median(ours), "peer": best,
                   "ratio": peers[best]["ratio"], "peers": peers}
            print(f"{weights:7} {threads} threads, {how:10}  {row['sentences_per_s']:8.1f} sentences/s  {row['ratio']:6.3f}  " +
                  "  ".join(f"{n} {p['rate']:.1f} (cosine {p['cosine']:.4f})" for n, p in peers.items()))
            sys.stdout.flush()
            yield row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kp")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, a run for each")
    parser.add_argument("--only", default="", help="one precision of kp's")
    parser.add_argument("--seconds", type=float, default=1, help="for each median of a rival")
    parser.add_argument("--turns", type=int, default=5, help="of each")
    parser.add_argument("--record", type=pathlib.Path, help="a file that rows are added to, a JSON object a line")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    for threads in map(int, args.threads.split(",")):
        # Each run in a process of its own, whose threads inherit the cores it may use.
        if (child := os.fork()) == 0:
            os.sched_setaffinity(0, cores[-threads:])
            torch.set_num_threads(threads)
            os.environ["TOKENIZERS_PARALLELISM"] = str(threads > 1).lower()
            with tempfile.TemporaryDirectory() as folder:
                for row in measure(args, threads, pathlib.Path(folder)):
                    if args.record:
                        with args.record.open("a") as record:
                            record.write(json.dumps(row) + "\n")
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"the run with {threads} threads failed")


if __name__ == "__main__":
    main()
