"""Vocabularies of 384 tokens, one for each family of tokenizers: byte-pair (gpt2) and SentencePiece."""

import functools

import gguf

VOCAB = 384
Type = gguf.TokenType

CORPUS = """the quick brown fox jumps over the lazy dog. the cat sat on the mat and the dog ran to the
river in the morning. there are seven tokens in this test and the engine should return the same answer
each time it is started. when the window is small the attention should not see the first word. numbers
like 10 and 25 and 100 are here, and so is some code: for i in range(10): print(i). it is not the end;
there is another line, and then one more before the test stops. the engine reads the weights, the engine
writes the tokens, and the reader checks that the numbers agree within the noise of the machine."""

SPACE = "\u2581"  # how SentencePiece writes a space
BAR = "\uff5c"  # deepseek's full-width bar

# name: (kind, pre-tokenizer, special tokens, place of BOS among them, place of EOS, whether BOS is added)
TOKENIZERS = {
    "llama3": (
        "bpe",
        "llama-bpe",
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        0,
        4,
        True,
    ),
    "qwen2": ("bpe", "qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, 2, False),
    "qwen35": ("bpe", "qwen35", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, 2, False),
    "gptoss": (
        "bpe",
        "gpt-4o",
        [f"<|{name}|>" for name in ("startoftext", "endoftext", "return", "start", "message", "channel", "end", "call")],
        0,
        2,
        False,
    ),
    "olmo": ("bpe", "olmo", ["<|endoftext|>", "<|padding|>"], 0, 0, False),
    "granite": ("bpe", "refact", ["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"], 0, 0, False),
    "deepseek": (
        "bpe",
        "deepseek-v3",
        [f"<{BAR}{name}{BAR}>" for name in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant")],
        0,
        1,
        True,
    ),
    "tekken": ("bpe", "tekken", ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], 1, 2, True),
    "llama4": ("bpe", "llama4", ["<|begin_of_text|>", "<|end_of_text|>", "<|eot|>"], 0, 2, True),
    "spm": ("spm", None, ["<unk>", "<s>", "</s>"], 1, 2, True),
    "phi3": (
        "spm",
        None,
        ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"],
        1,
        3,
        True,
    ),
    "gemma": ("spm", None, ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"], 2, 1, True),
    "gemma4": ("gemma4", None, ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"], 2, 1, True),
}


def byte_characters():
    """GPT-2's table: each byte as one printable character."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = [b for b in range(256) if b not in printable]
    shown = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return {b: shown[b] for b in range(256)}


def learn_merges(words, limit):
    """Byte-pair training on tuples of symbols; ties fall to the smallest pair, so it is deterministic."""
    words, merges = [list(w) for w in words], []
    while len(merges) < limit:
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        best = max(sorted(counts), key=lambda pair: counts[pair])
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                else:
                    i += 1
    return merges


@functools.cache
def byte_merges():
    table = byte_characters()
    words = [tuple(table[b] for b in ((" " if i else "") + w).encode()) for i, w in enumerate(CORPUS.split())]
    return learn_merges(words, 400)


@functools.cache
def piece_merges():
    return learn_merges([tuple(SPACE + w) for w in CORPUS.split()], 400)


def byte_pair_vocabulary(specials):
    """256 byte tokens, then merged pieces, then the special tokens, as qwen and llama 3 have them."""
    tokens, merges = list(byte_characters().values()), []
    known = set(tokens)
    for a, b in byte_merges():
        if len(tokens) + len(specials) == VOCAB:
            break
        merges.append(f"{a} {b}")
        if a + b not in known:
            known.add(a + b)
            tokens.append(a + b)
    types = [Type.NORMAL] * len(tokens) + [Type.CONTROL] * len(specials)
    tokens += specials
    assert len(tokens) == VOCAB
    return tokens, types, merges


def piece_vocabulary(specials):
    """Special tokens, 256 byte tokens, merged pieces and single characters with falling scores."""
    tokens, types, scores = [], [], []

    def add(token, token_type, score):
        tokens.append(token)
        types.append(token_type)
        scores.append(score)

    for special in specials:
        add(special, Type.UNKNOWN if special == "<unk>" else Type.CONTROL, 0.0)
    for byte in range(256):
        add(f"<0x{byte:02X}>", Type.BYTE, 0.0)
    characters = [SPACE] + [chr(c) for c in range(33, 127)]
    merged = [a + b for a, b in piece_merges()][: VOCAB - len(tokens) - len(characters)]
    rank = 0
    for piece in merged + characters:
        if piece not in tokens:
            add(piece, Type.NORMAL, -float(rank))
            rank += 1
    while len(tokens) < VOCAB:
        add(f"<unused{len(tokens)}>", Type.UNUSED, -1e4)
    assert len(tokens) == VOCAB == len(set(tokens))
    return tokens, types, scores


def add_tokenizer(writer, name):
    """Writes the metadata of the tokenizer `name`."""
    kind, pre, specials, bos, eos, add_bos = TOKENIZERS[name]
    if kind == "bpe":
        tokens, types, merges = byte_pair_vocabulary(specials)
        first_special = VOCAB - len(specials)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
    else:
        tokens, types, scores = piece_vocabulary(specials)
        first_special = 0
        writer.add_tokenizer_model("llama" if kind == "spm" else kind)
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        if kind == "gemma4":  # byte-pair over raw characters, spaces written as SentencePiece does
            known = set(tokens)
            writer.add_token_merges([f"{a} {b}" for a, b in piece_merges() if {a, b, a + b} <= known])
        if name.startswith("gemma"):
            writer.add_add_space_prefix(False)
    if bos is not None:
        writer.add_bos_token_id(first_special + bos)
    writer.add_eos_token_id(first_special + eos)
    writer.add_add_bos_token(add_bos)
