"""Arrays travel without changing a bit."""

import numpy as np
import pytest

from simgrad import Bits, arrays
from simgrad.v1 import tensor_pb2


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "int64", "bool", "uint32", "uint8"])
def test_an_array_comes_back_with_its_dtype_shape_and_bits(dtype):
    original = (
        np.random.default_rng(1)
        .integers(0, 2, (3, 0, 2) if dtype == "int64" else (3, 4))
        .astype(dtype)
    )
    back = arrays.from_tensor(arrays.to_tensor(original))
    assert back.dtype == original.dtype and back.shape == original.shape
    assert back.tobytes() == original.tobytes()


@pytest.mark.parametrize("dtype", [np.uint32, np.uint8])
def test_the_largest_unsigned_number_travels(dtype):
    original = np.array([0, 1, np.iinfo(dtype).max], dtype)
    back = arrays.from_tensor(arrays.to_tensor(original))
    assert back.dtype == dtype and back.tolist() == original.tolist()


def test_every_f16_comes_back_as_the_f32_that_equals_it():
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = arrays.from_tensor(arrays.to_tensor(bits.view(np.float16)))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, bits.view(np.float16).astype(np.float32))


def test_every_bf16_is_the_upper_half_of_its_f32():
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = arrays.from_tensor(arrays.to_tensor(Bits(bits, "bf16")))
    assert back.tobytes() == (bits.astype(np.uint32) << 16).tobytes()


def exact_fp8(bits, exponent_bits, has_infinity):
    """The value by the definition of the OCP format, in Python numbers."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    magnitude = bits & 0x7F
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    top = (1 << exponent_bits) - 1
    if has_infinity and exponent == top:
        value = float("inf") if mantissa == 0 else float("nan")
    elif not has_infinity and magnitude == 0x7F:
        value = float("nan")
    elif exponent == 0:
        value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    else:
        value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    return -value if bits & 0x80 else value


@pytest.mark.parametrize(
    "format, exponent_bits, has_infinity", [("e4m3", 4, False), ("e5m2", 5, True)]
)
def test_every_fp8_widens_to_its_value(format, exponent_bits, has_infinity):
    bits = np.arange(256, dtype=np.uint8)
    back = arrays.from_tensor(arrays.to_tensor(Bits(bits, format)))
    expected = np.array([exact_fp8(int(b), exponent_bits, has_infinity) for b in bits], np.float32)
    np.testing.assert_array_equal(back, expected)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(back[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("format, one", [("bf16", 0x3F80), ("f16", 0x3C00), ("e5m2", 0x3C), ("e4m3", 0x38)])
def test_one_number_of_a_low_format_is_an_array_without_axes(format, one):
    """NumPy 1 computes such arrays in other types than it does others."""
    bits = np.array(one, np.uint16 if format in ("bf16", "f16") else np.uint8)
    for raw, number in ((False, 1.0), (True, one)):
        back = arrays.from_tensor(arrays.to_tensor(Bits(bits, format)), raw=raw)
        assert isinstance(back, np.ndarray) and back.shape == () and back == number
    flag = arrays.from_tensor(arrays.to_tensor(np.array(True)))
    assert isinstance(flag, np.ndarray) and flag.dtype == bool and flag


def test_raw_gives_the_bits_of_low_formats():
    bits = np.array([0x3C00, 0x7E00], np.uint16)
    back = arrays.from_tensor(arrays.to_tensor(Bits(bits, "f16")), raw=True)
    assert back.dtype == np.uint16 and back.tolist() == bits.tolist()


def test_order_and_strides_do_not_matter():
    original = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
    message = arrays.to_tensor(original)
    assert message.inline == np.arange(6, dtype="<f8").tobytes()
    assert message.dtype == tensor_pb2.DTYPE_F64


@pytest.mark.parametrize(
    "bad", [np.zeros(2, np.complex128), np.array(["a"]), np.zeros(2, np.uint16), object()]
)
def test_a_dtype_that_cannot_travel_is_refused(bad):
    with pytest.raises(TypeError, match="cannot travel"):
        arrays.to_tensor(bad)


def test_bits_of_the_wrong_width_are_refused():
    with pytest.raises(TypeError, match="uint16"):
        Bits(np.zeros(2, np.uint8), "bf16")
    with pytest.raises(ValueError, match="one of"):
        Bits(np.zeros(2, np.uint8), "f32")
