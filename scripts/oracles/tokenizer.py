#!/usr/bin/env python3
"""Expected token ids for tests/text, from the Hugging Face `tokenizers` and `sentencepiece`.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0 protobuf==7.36.2
    python scripts/oracles/tokenizer.py [--smollm models/SmolLM2-135M-Instruct-Q4_1.gguf]

Writes tests/data/text/tokenizer_*.json. Each family's pre-tokenizer is put together as its
published tokenizer.json does it; vocabularies are small ones trained here on the text below, but
SmolLM2's, which is read from a GGUF file (only the ids are stored). No network is used.
"""
import argparse
import io
import json
import pathlib
import random
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "text"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "<|box|>", "<|box|>2"]

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
PATTERNS = {
    "qwen2": WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDING,
    "qwen35": WORDS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + ENDING,
    "llama-bpe": WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + ENDING,
    "gpt-4o": rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{WORDS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{WORDS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDING,
}

CORPUS = """\
The quick brown fox doesn't jump over the lazy dog; they've said it'll be fine, I'm sure she'd \
agree.
WE'RE NOT SURE THAT IT'S WORKING. Don't panic: you're only reading the 3rd line of 1024 lines.
In the beginning there was nothing, and then there was the word, and the word was tokenized.
Numbers: 0 1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-9 2024-05-17 10:45:00 50% $9.99 #42
def merge(left, right):\n    if left is None:\n        return right\n\n    for i in \
range(10):\n\t\tprint(i)
int main(void) {\r\n    return 0; // nothing to do\r\n}\r\n
template <class T> std::vector<T> f(const T& x) { return {x, x}; }  /* comment */
<div class="item"><a href="https://example.org/path?x=1&y=2">link</a></div>
{"name": "value", "list": [1, 2, 3], "nested": {"true": false, "null": null}}
Café déjà vu, naïve façade, Zoë, Ångström, straße, piñata, coöperate, Øresund, Łódź.
Cafe\u0301 de\u0301ja\u0300 vu, nai\u0308ve fac\u0327ade, A\u030angstro\u0308m.
你好,世界。这是一个用于测试的句子。今天天气很好,我们去公园吧。机器学习模型
こんにちは世界。これはテストです。カタカナとひらがなと漢字を混ぜます。
안녕하세요 세계. 이것은 토큰화 시험입니다. 한국어 문장.
Привет, мир! Это предложение для проверки токенизатора. Съешь ещё этих мягких булок.
Γειά σου Κόσμε, αυτό είναι ένα τεστ. ΑΒΓΔ αβγδ
مرحبا بالعالم. هذا اختبار للنص العربي مع الحركات: مَرْحَبًا ١٢٣٤
नमस्ते दुनिया। यह एक परीक्षण वाक्य है। हिन्दी में लिखा हुआ १२३
สวัสดีชาวโลก นี่คือการทดสอบ
שלום עולם, זה מבחן. שָׁלוֹם
😀 😃 😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ 👨‍💻 ☕ ✅ 🚀🚀🚀
→ ← ↑ ↓ ∀x∈ℝ: x² ≥ 0 ∧ ½ + ¼ = ¾ ⅓ Ⅷ ① ㊿ “quoted” ‘single’ — dash – en… €£¥
of the and the in the to the of the for the on the with the that the is a was a to be
"""

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\n\n\n\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t",
    " \n", "\n ", " \n ", "  \n  \n  ", "\n\t", " \t \t", "a", "A", "é", "e\u0301", " a", "a ",
    "  a", "a  ", "   a   b   ", "Hello world", "Hello, world!", " Hello", "hello  world   again",
    "HELLO WORLD", "helloWorld HTTPServer XMLHttpRequest", "it's", "IT'S",
    "It'S we'Ve THEY'LL i'M he'D you'Re don'T", "'s 't 're 've 'm 'll 'd", " 's '", "''s", "'S'T",
    "it\u2019s we\u2019re", "it'\u017f", "'\u017ftop", "x'\u212a", "I'LLama", "they'd've",
    "rock'n'roll", "o'clock 'tis", "1", "12", "123", "1234", "12345", "123456", "1234567",
    "12345678901234567890", " 1", " 12 345", "3.14159", "1,234,567.89", "a1b2c3", "1a", "a1",
    "1234a", "1234567abc 1234567_ 1234567- 1234567", "v1.2.3-rc4", "²³¹ x² ½¾ ⅓ ⅧⅨ ①② ㊿",
    "٠١٢٣٤ ١٢٣٤٥٦٧", "१२३४५", "１２３４", "𝟏𝟐𝟑𝟒", "1\u03012", "12\u20e3", "10\u24b6 1000\u24b6",
    "def f(x):\n    return x + 1\n", "if (a) {\n\tb();\n\t\tc();\n}\n",
    "    indented\n        more\n\n\n    back", "for(int i=0;i<n;++i){a[i]+=b[i];}//c",
    "#include <vector>\r\n\r\nint x;\r\n", "a\rb\r\rc", "line one\nline two\r\nline three",
    "x  \n  y", "x \r\n y", "x\n\n  y", "\n\n  y  \n", "word.\n\nNext", "word...\n\n\n",
    "a.\r\nb!\n/c//\n/", "path/to/file\n/usr/bin", "x;\n/y;\r\n//z.\n\n", "¡/\n/\n!", "!!!", "!?!?",
    " !", "  !", "a!b", "a ! b", "...\n", "... \n", "<>", "==>", "$x^y~z`|", "+-*/=%&@#",
    "\"quoted\" 'single' (paren) [brack] {brace}", "Café déjà vu", "Cafe\u0301 de\u0301ja\u0300 vu",
    "\u0301", " \u0301", "a\u0301\u0302\u0303b", "!\u0301", "1\u0301", "\n\u0301", "a \u0301b",
    "\u0301\u0301 x", "你好世界", "你好,世界。", " 你好 世界 ", "今天123天气very好", "こんにちは世界。テスト",
    "カタカナ ｶﾀｶﾅ がぎ か\u3099", "안녕하세요 세계", "\u1112\u1161\u11ab\u1100\u1173\u11af", "Привет, мир!",
    "ПРИВЕТ Мир мИР", "Γειά σου ΚΌΣΜΕ", "مرحبا بالعالم", "مَرْحَبًا", "नमस्ते दुनिया।",
    "हिन्दी क्षत्रिय", "สวัสดีชาวโลก", "שָׁלוֹם", "ǅ ǆ Ǆ ǅabc aǅb ʰx xʰ ªº", "😀", "😀😀", "a😀b",
    "👩‍👩‍👧‍👦", "👍🏽 ok", "🏳️‍🌈🇩🇪🇫🇷", "❤️ ❤", "1️⃣2️⃣", "\u200d\u200d", "a\u200db", "\ufeffbom",
    "a\u00adb", "\x00", "\x01\x02\x03", "a\x00b", "\x1b[31mred\x1b[0m", "\x7f\x80\x9f", "\x0b\x0c",
    "a\x0bb\x0cc\x1cd\x1fe", "\x85", "a\x85b", "\u00a0", "a\u00a0b", "a \u00a0 b", "\u2003\u2003x",
    "a\u2028b\u2029c", "\u3000\u3000你", "\u180e", "a\u180eb", " \u180e x", "\u200b \u200b",
    "\u1680x \u202f\u205f", "\ue000\uf8ff", "\ufffd", "\uffff", "\U0010ffff", "𝐇𝐞𝐥𝐥𝐨", "𐐷𐐨 𐐏",
    "ꙮ ꭰ Ꭰ", "\U00020000\U0002a6d6", "_", "__init__", "snake_case CamelCase kebab-case", "a_1_b",
    "‿ ⁀", "▁", "▁▁a", "a▁b ▁ c", "<0x41>", "<0x0A><0xZZ>", "<s>", "</s> <unk>", "<s>hello</s>",
    "<|im_end|>", "done.<|im_end|>", "x<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n", ")<think>",
    "(<think>ok</think>)", "<think>\n\n</think>\n\nYes", "<|im_start|", "<<|im_end|>>",
    "<|im_<|im_end|>", "<|im_end|><|im_end|>", "你<|im_end|>好", " <|im_end|> ", "1<think>2</think>3",
    "<|box|>2<|box|>1<|box|>", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
    "<|endoftext|>", "a<|endoftext|>b", "<think", "think>", "'<think>s", "12<|im_end|>34",
    "   <|im_start|>   ", "\n<|im_start|>\n", "<THINK>", "of the and the in the to the",
    "      deep   indent\t\tmix \t ", "a" * 300, " " * 300, "ab" * 150, "\n" * 37, "1" * 200,
    "!" * 150, "the " * 60,
]


def random_texts(count, seed):
    """Strings over every assigned character of Unicode 14, with a liking for awkward ones."""
    rng = random.Random(seed)
    assert unicodedata.unidata_version == "14.0.0"
    assigned = [chr(c) for c in range(0x110000)
                if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    marks = [c for c in assigned if unicodedata.category(c)[0] == "M"]
    numbers = [c for c in assigned if unicodedata.category(c)[0] == "N"]
    spaces = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u3000")
    ascii_text = [chr(c) for c in range(128)]
    letters = list("abcdefgHIJKLstdmrvelLTSDM''''")
    texts = []
    for _ in range(count):
        pools = rng.sample([assigned, marks, numbers, spaces, ascii_text, letters, list(" \n"),
                            list("0123456789"), list(".,;!?<|>/_-")], k=rng.randint(2, 5))
        texts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 28))))
    return texts


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def pre_tokenizer(name):
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    stages = {
        "gpt-2": [gpt2],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), gpt2],
        "laguna": [split(r"[^\n]+|[\n]+"), split(PATTERNS["qwen2"]), raw],
        "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(PATTERNS["gpt-4o"]), raw],
        "default": [split(r"[\p{P}\$\+<=>\^~\|]+"),
                    split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
                          r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                    split(r"\p{N}+"), split("[0-9][0-9][0-9]"), raw],
    }
    if name in PATTERNS:
        stages[name] = [split(PATTERNS[name]), raw]
    return pre_tokenizers.Sequence(stages[name])


def byte_level(name, model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_bpe(tokenizer, size, corpus=CORPUS, **options):
    trainer = BpeTrainer(vocab_size=size, min_frequency=1, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def ids_of(make, texts, known=()):
    """Ids with control tokens parsed and, where it matters, without."""
    full, plain = make(), make()
    full.add_special_tokens([AddedToken(t, normalized=False) for t in known])
    full.add_special_tokens([AddedToken(t, normalized=False) for t in CONTROL])
    # The plain one must number the user-defined tokens alike.
    added = [AddedToken(t, normalized=False) for t in USER_DEFINED]
    full.add_tokens(added)
    plain.add_tokens([AddedToken(t, normalized=False) for t in
                      [f"\U000f0000{i}" for i in range(len(CONTROL))]] + added)
    assert full.token_to_id("<think>") == plain.token_to_id("<think>")
    parsed = [full.encode(t, add_special_tokens=False).ids for t in texts]
    unparsed = [plain.encode(t, add_special_tokens=False).ids for t in texts]
    return parsed, {str(i): b for i, (a, b) in enumerate(zip(parsed, unparsed)) if a != b}


def write(name, data):
    with io.open(OUT / f"tokenizer_{name}.json", "w", encoding="utf-8", newline="\n") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def write_vocab(name, tokens, **rest):
    write(name, {"tokens": tokens, **rest})


def in_order(vocab):
    return [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]


def byte_level_families(texts):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained = {}
    for name, size in [("gpt-2", 900), ("qwen2", 1200), ("qwen35", 900), ("llama-bpe", 900),
                       ("gpt-4o", 1200)]:
        vocab, merges = train_bpe(byte_level(name, BPE()), size, initial_alphabet=alphabet)
        if name == "llama-bpe":
            # Whole words that no merge builds: taken all the same, because merges are ignored.
            for word in ["ĠHello", "world", "indented", "123", "ĠĠĠĠĠĠ", "ĊĊĊ", "Ġ你好"]:
                vocab.setdefault(word, len(vocab))
        trained[name] = vocab, merges
    for name, base in [("gpt-2", "gpt-2"), ("qwen2", "qwen2"), ("qwen35", "qwen35"),
                       ("llama-bpe", "llama-bpe"), ("gpt-4o", "gpt-4o"), ("default", "gpt-2"),
                       ("laguna", "qwen2"), ("tiny_aya", "gpt-4o"), ("smollm", "gpt-2")]:
        vocab, merges = trained[base]
        ignore = name == "llama-bpe"
        parsed, unparsed = ids_of(
            lambda: byte_level(name, BPE(vocab, merges, ignore_merges=ignore)), texts)
        # Where each piece ends, in characters: finer than ids, which a boundary need not change.
        ends = [[end for _, (_, end) in pre_tokenizer(name).pre_tokenize_str(t)] for t in texts]
        data = {"model": "gpt2", "pre": name, "vocab": base, "ids": parsed, "plain": unparsed,
                "pieces": ends}
        write(f"ids_{name}", data)
        if name == base:
            count = len(vocab)
            write_vocab(f"vocab_{name}", in_order(vocab) + CONTROL + USER_DEFINED,
                        merges=[f"{a} {b}" for a, b in merges],
                        control=list(range(count, count + len(CONTROL))),
                        user_defined=list(range(count + len(CONTROL),
                                                count + len(CONTROL) + len(USER_DEFINED))))


def gemma_families(texts):
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    # With words as pieces no merge crosses a space mark; with lines, phrases merge.
    for name, pattern in [("gemma4", "\n+|▁*[^▁\n]+|▁+"), ("gemma4_phrases", "\n+|[^\n]+")]:
        trainer = Tokenizer(BPE())
        trainer.normalizer = normalizers.Replace(" ", "▁")
        trainer.pre_tokenizer = split(pattern)
        # Scripts that are left out become bytes. (The trainer's limit_alphabet is not repeatable.)
        known = "".join(c for c in CORPUS if c < "\u0250" or "\u3040" <= c < "\u30a0")
        vocab, merges = train_bpe(trainer, 700, corpus=known)
        vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", "<bos>", "<unk>"] + bytes_
                                            + in_order(vocab))}

        def make():
            tokenizer = Tokenizer(BPE(vocab, merges, byte_fallback=True, fuse_unk=True,
                                      unk_token="<unk>"))
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            return tokenizer

        parsed, unparsed = ids_of(make, texts, known=["<pad>", "<eos>", "<bos>", "<unk>"])
        count = len(vocab)
        write(f"ids_{name}", {"model": "gemma4", "pre": "", "vocab": name, "ids": parsed,
                              "plain": unparsed})
        write_vocab(f"vocab_{name}", in_order(vocab) + CONTROL + USER_DEFINED,
                    merges=[f"{a} {b}" for a, b in merges], unknown=[3], bytes=list(range(4, 260)),
                    control=[0, 1, 2] + list(range(count, count + len(CONTROL))),
                    user_defined=list(range(count + len(CONTROL),
                                            count + len(CONTROL) + len(USER_DEFINED))))


def sentencepiece_families(texts):
    model = io.BytesIO()
    lines = [line for line in CORPUS.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=900, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True,
        minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    texts = [t for t in texts if "\0" not in t]
    for name in ["spm", "spm_unused"]:
        if name == "spm_unused":
            for i in range(300, len(proto.pieces), 7):
                proto.pieces[i].type = 5
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        kinds = [piece.type for piece in proto.pieces]
        write_vocab(f"vocab_{name}", [piece.piece for piece in proto.pieces],
                    scores=[piece.score for piece in proto.pieces],
                    unknown=[i for i, k in enumerate(kinds) if k == 2],
                    control=[i for i, k in enumerate(kinds) if k == 3],
                    unused=[i for i, k in enumerate(kinds) if k == 5],
                    bytes=[i for i, k in enumerate(kinds) if k == 6])
        write(f"ids_{name}", {"model": "llama", "pre": "", "vocab": name, "texts": texts,
                              "unparsed": [processor.encode(t) for t in texts]})


def smollm(path, texts):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = byte_level("smollm", BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t, kind in zip(tokens, kinds) if kind == 3])
    write("ids_smollm2", {"ids": [tokenizer.encode(t, add_special_tokens=False).ids
                                  for t in texts]})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--smollm", help="a GGUF file of SmolLM2")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    texts = TEXTS + random_texts(90, seed=20240517)
    write("texts", texts)
    byte_level_families(texts)
    gemma_families(texts)
    sentencepiece_families(texts)
    if arguments.smollm:
        smollm(arguments.smollm, texts)


if __name__ == "__main__":
    main()
