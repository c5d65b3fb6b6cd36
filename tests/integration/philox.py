"""Philox4x32-10 and splitmix64 with Python's integers (docs/numerics.md section 4)."""

WORD = 2**32 - 1


def splitmix64(z):
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def words(key, counter):
    """w0 2^32 + w1 of Philox4x32-10."""
    low, high = key & WORD, key >> 32
    c = [number & WORD for number in counter]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & WORD, (a >> 32) ^ c[3] ^ high, a & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return c[0] << 32 | c[1]


def key_of(seed, instance_id):
    """What an instance draws by."""
    return splitmix64(seed ^ splitmix64(instance_id))
