"""llama.cpp as a worker of `vitriol-engine bench --peer`: a JSON task a line in, its answer a line out.

The tasks, their prompts and what is timed are those of daemons/engine/src/bench/protocol.rs; this file
only drives llama.cpp's own low-level functions and keeps Python out of what is timed as far as it can:
one call a step, the greedy choice by numpy.
"""

import argparse
import ctypes
import json
import sys
import time

import llama_cpp as lib
import numpy

BATCH_PROMPT_TOKENS = 128
STEP_TOKENS = 512
KV_TYPES = {"f32": 0, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": 2}
MASK = (1 << 64) - 1


def prompt_token(seed, index, vocab):
    """Token `index` of the prompt of `seed`: splitmix64, as in protocol.rs."""
    z = ((seed << 32) + index + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return (z ^ (z >> 31)) % vocab


@lib.llama_log_callback
def silent(_level, _text, _data):
    """llama.cpp reports its whole load; only failures matter, and those raise."""


class Worker:
    """A loaded model and the context of the task at hand."""

    def __init__(self, options):
        self.options = options
        self.context = self.memory = self.shape = self.filled = None
        lib.llama_log_set(silent, ctypes.c_void_p())
        lib.llama_backend_init()
        began = time.perf_counter()
        parameters = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(options.model.encode(), parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {options.model}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.open_context(options.context_tokens, 1)
        self.decode([0], 0)
        self.load_s = time.perf_counter() - began

    def ready(self):
        """The first line."""
        info = lib.llama_print_system_info().decode()
        flags = [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]
        return {
            "engine": f"llama.cpp (llama-cpp-python {lib.__version__})",
            "isa": " ".join(flag.split(":")[-1].strip() for flag in flags),
            "threads": self.options.threads,
            "load_s": self.load_s,
            "model": None,
        }

    def open_context(self, tokens, sequences):
        """A context of `tokens` for each of `sequences`, unless it is the one that is open."""
        shape = (tokens, sequences)
        if shape == self.shape:
            return
        if self.context:
            lib.llama_free(self.context)
        parameters = lib.llama_context_default_params()
        # Each sequence gets an equal part, padded to 256.
        parameters.n_ctx = -(-tokens // 256) * 256 * sequences
        parameters.n_batch = parameters.n_ubatch = STEP_TOKENS
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = self.options.threads
        parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        parameters.type_k = KV_TYPES[self.options.kv_keys]
        parameters.type_v = KV_TYPES[self.options.kv_values]
        parameters.swa_full = False
        self.context = lib.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp makes no such context")
        self.memory = lib.llama_get_memory(self.context)
        self.shape, self.filled = shape, None

    def prompt(self, tokens, seed):
        return [prompt_token(seed, index, self.vocab) for index in range(tokens)]

    def clear(self):
        lib.llama_memory_clear(self.memory, True)
        self.filled = None

    def greedy(self, row):
        """The likeliest token of logits row `row` of the last step (-1: the last)."""
        logits = lib.llama_get_logits_ith(self.context, row)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocab,)).argmax())

    def decode(self, tokens, position):
        """Computes `tokens` of the one sequence from `position` on; the token that comes next."""
        for start in range(0, len(tokens), STEP_TOKENS):
            part = tokens[start : start + STEP_TOKENS]
            array = (lib.llama_token * len(part))(*part)
            self.step(lib.llama_batch_get_one(array, len(part)))
        return self.greedy(-1)

    def step(self, batch):
        status = lib.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    # ------------------------------------------------------------------------------------- tasks

    def prefill(self, tokens, seed, seconds_min):
        self.open_context(self.options.context_tokens, 1)
        computed, seconds = 0, 0.0
        while seconds < seconds_min:
            prompt = self.prompt(tokens, seed)
            self.clear()
            began = time.perf_counter()
            self.decode(prompt, 0)
            seconds += time.perf_counter() - began
            computed, seed = computed + tokens, seed + 1
        return {"rates": [computed / seconds]}

    def fill(self, depth, seed):
        """KV of a prompt, kept from task to task; the token that comes next."""
        if self.filled is None or self.filled[:2] != (depth, seed):
            self.clear()
            following = self.decode(self.prompt(depth, seed), 0)
            size = lib.llama_state_seq_get_size(self.context, 0)
            state = (ctypes.c_uint8 * size)()
            if lib.llama_state_seq_get_data(self.context, state, size, 0) != size:
                raise RuntimeError("llama.cpp gives no state")
            self.filled = (depth, seed, state, following)
        else:
            _, _, state, following = self.filled
            lib.llama_memory_clear(self.memory, True)
            if not lib.llama_state_seq_set_data(self.context, state, len(state), 0):
                raise RuntimeError("llama.cpp takes its own state not back")
        return following

    def decode_rates(self, depth, tokens, runs, seed):
        self.open_context(self.options.context_tokens, 1)
        depth, rates = max(depth, 1), []
        for _ in range(runs):
            token = self.fill(depth, seed)
            began = time.perf_counter()
            for index in range(tokens):
                token = self.decode([token], depth + index)
            rates.append(tokens / (time.perf_counter() - began))
        return {"rates": rates}

    def batch(self, sequences, tokens, seed):
        self.open_context(BATCH_PROMPT_TOKENS + tokens + 1, sequences)
        self.clear()
        batch = lib.llama_batch_init(STEP_TOKENS, 0, 1)
        try:
            following = []
            for sequence in range(sequences):
                prompt = self.prompt(BATCH_PROMPT_TOKENS, seed + sequence)
                rows = [(token, at, sequence) for at, token in enumerate(prompt)]
                put(batch, rows, last_only=True)
                self.step(batch)
                following.append(self.greedy(-1))
            began = time.perf_counter()
            for index in range(tokens):
                position = BATCH_PROMPT_TOKENS + index
                rows = [(token, position, sequence) for sequence, token in enumerate(following)]
                put(batch, rows, last_only=False)
                self.step(batch)
                following = [self.greedy(row) for row in range(sequences)]
            seconds = time.perf_counter() - began
        finally:
            lib.llama_batch_free(batch)
        return {"rates": [sequences * tokens / seconds]}

    def first_token(self, tokens, seed):
        prompt = self.prompt(tokens, seed)
        began = time.perf_counter()
        if self.filled == ("first", tokens, seed):
            # What a server with a prompt cache does: all but the last token is there.
            lib.llama_memory_seq_rm(self.memory, 0, tokens - 1, -1)
            self.decode(prompt[-1:], tokens - 1)
        else:
            self.clear()
            self.decode(prompt, 0)
            self.filled = ("first", tokens, seed)
        return {"seconds": time.perf_counter() - began}

    def run(self, task):
        match task.pop("do"):
            case "prefill":
                return self.prefill(**task)
            case "decode":
                return self.decode_rates(**task)
            case "batch":
                return self.batch(**task)
            case "first_token":
                return self.first_token(**task)
            case other:
                return {"failed": f"no task {other} for this engine"}


def put(batch, rows, last_only):
    """Makes (token, position, sequence) the batch; logits of all rows, or of the last."""
    batch.n_tokens = len(rows)
    for row, (token, position, sequence) in enumerate(rows):
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = not last_only or row == len(rows) - 1


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    for name in ("--threads", "--context-tokens", "--kv-tokens", "--sequences"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--kv-keys", "--kv-values"):
        parser.add_argument(name, choices=KV_TYPES, required=True)
    return parser.parse_args()


def main():
    worker = Worker(options())
    print(json.dumps({"ready": worker.ready()}), flush=True)
    for line in sys.stdin:
        try:
            answer = worker.run(json.loads(line))
        except (RuntimeError, TypeError, ValueError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
