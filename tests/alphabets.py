"""Text that is hard on a text pipeline, as hypothesis strategies."""

from hypothesis import strategies as st

COMBINING = "\u0300\u0301\u0308\u0316\u0327\u0345\u05bc\u0f71\u3099\u309a\U0001d16d"
HANGUL = "\u1100\u1161\u11a8\u1112\u1175\u11ff\u115f\u1160\u3131\u3164가각힣\uffa1\uffc2\uffa0"
KANA = "ｶﾊﾞﾟｳかはウ゛ﾞｦ"
EMOJI = "😭👨👩👧\u200d\ufe0f\u2764\U0001f3fb\U0001f1e8\U0001f1f3\U000e0067\U000e007f"
FOLDING = "ΣςσßẞﬃİıŉǰΐᾳᾼſKÅⅧ①㎏℃½"
CHINESE = "好差體体後里裏乾發髮不!！。…３３ＡＢ，,~～·"
INVISIBLE = "\x00\x07\x1b\x7f\x85\xad\u200b\u200e\u202e\u2028\u2029\u2060\ufeff\u180e\u034f"
SPACE = " \t\r\n\x0b\x0c\x1c\xa0\u2003\u3000"
SURROGATES = "\ud83d\ude2d\ud800\udfff"
NASTY = COMBINING + HANGUL + KANA + EMOJI + FOLDING + CHINESE + INVISIBLE + SPACE + "aAbzZ09"

nasty_text = st.text(alphabet=st.sampled_from(NASTY + SURROGATES), max_size=24)
any_text = st.one_of(nasty_text, st.text(max_size=24), st.text(alphabet=st.sampled_from("哈a!　 "), max_size=24))
