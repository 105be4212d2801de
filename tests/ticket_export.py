"""A CSV export as a ticket system writes it: Chinese columns and labels, GB18030, and what goes wrong in one."""

import csv
import random
from pathlib import Path

COLUMNS = ("工单号", "内容", "类别")
PHRASES = {
    "投诉": ("等了三天没人管", "客服态度极差", "屏幕一碰就碎", "要求马上退款", "气得想报警", "收到的是坏的",
             "说好的赔偿没有", "再也不买了", "包装破得不成样", "一直推卸责任", "太让人失望", "充电时烫手"),
    "咨询": ("请问怎么开发票", "保修期是多久", "能不能改地址", "有没有黑色的", "想了解会员规则", "几点可以送到",
             "支持分期吗", "如何绑定手机号", "哪里查看物流", "尺码怎么选", "可以自提吗", "优惠券在哪用"),
    "表扬": ("师傅非常耐心", "质量超出预期", "下次还会光顾", "给客服点个赞", "发货特别快", "家里人都喜欢",
             "包装精美用心", "做工真细致", "五星好评", "感谢帮忙解决", "服务周到热情", "性价比很高"),
}  # fmt: skip
NEUTRAL = ("周末下的单", "订单{}", "昨天签收", "编号{}", "在{}门店买的", "第{}次买", "同事推荐来的", "上午打过电话")


def tickets(rows: int, seed: int) -> list[tuple[str, str]]:
    """(text, right label), evenly over the labels; no two texts are near each other."""
    draw = random.Random(seed)
    names = tuple(PHRASES)
    found = []
    for index in range(rows):
        label = names[index % len(names)]
        parts = [*draw.sample(PHRASES[label], 2), draw.choice(NEUTRAL).format(draw.randrange(10**7))]
        draw.shuffle(parts)
        found.append(("，".join(parts) + f"，尾号{draw.randrange(10**6)}", label))
    return found


def write_export(path: Path, rows: list[tuple[str, str]], *, wrong: int = 0) -> Path:
    """The file, in GB18030: the first `wrong` rows have a wrong label, some labels a blank behind them, a few rows come
    twice, one has no text and one no label."""
    names = list(PHRASES)
    written = []
    for number, (text, label) in enumerate(rows):
        given = names[(names.index(label) + 1) % len(names)] if number < wrong else label
        written.append((text, given + " " if number % 50 == 49 else given))
    written += [*written[wrong : wrong + 6], ("", "投诉"), ("没有类别的一行", "")]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="gb18030", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((f"T{number:06}", *row) for number, row in enumerate(written, start=1))
    return path
