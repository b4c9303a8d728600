"""Every length-control method by the name that a recipe's `length_control` gives it."""

from leash_trl.length_control.a_dlp import ADLP
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.dler import DLER
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gfpo import GFPO
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import GRLC
from leash_trl.length_control.grpo_lead import GRPOLead
from leash_trl.length_control.hapo import HAPO
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.laser_d import LaserD, LaserDE
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_pi import LeashPI
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.prime_rl import PrimeRL
from leash_trl.length_control.thinkprune import ThinkPrune


METHODS: dict[str, type[LengthControl]] = {
    "leash": Leash,
    "leash_c": LeashC,
    "leash_pi": LeashPI,
    "laconic": Laconic,
    "l1_exact": L1Exact,
    "l1_max": L1Max,
    "thinkprune": ThinkPrune,
    "laser": Laser,
    "laser_d": LaserD,
    "laser_de": LaserDE,
    "kimi": Kimi,
    "dapo_overlong": DapoOverlong,
    "efficient": Efficient,
    "a_dlp": ADLP,
    "alp": ALP,
    "gfpo": GFPO,
    "dler": DLER,
    "cosine": Cosine,
    "grpo_lead": GRPOLead,
    "prime_rl": PrimeRL,
    "gr3": GR3,
    "grlc": GRLC,
    "hapo": HAPO,
    "none": NoControl,
}
