use super::*;

/// Arguments from a list; strings by their place in another one.
struct List<'a>(Vec<u64>, &'a [&'a str]);

impl Arguments for List<'_> {
    type Error = ();

    fn next(&mut self, _bytes: u32) -> Result<u64, ()> {
        if self.0.is_empty() { Err(()) } else { Ok(self.0.remove(0)) }
    }

    fn string(&mut self, address: u64, most: usize) -> Result<Vec<u8>, ()> {
        let text = self.1[address as usize - 1].as_bytes();
        Ok(text[..text.len().min(most)].to_vec())
    }
}

fn said(format: &str, values: &[u64]) -> (String, u32) {
    let mut list = List(values.to_vec(), &["word", ""]);
    let (text, taken) = text(format.as_bytes(), &mut list).unwrap();
    (String::from_utf8(text).unwrap(), taken)
}

/// What C's own `printf` writes for these.
#[test]
fn integers_and_strings() {
    let minus = -7i32 as u32 as u64;
    for (format, value, want) in [
        ("[%d]", minus, "[-7]"),
        ("[%5d]", minus, "[   -7]"),
        ("[%-5d]", minus, "[-7   ]"),
        ("[%05d]", minus, "[-0007]"),
        ("[%+d]", 7, "[+7]"),
        ("[% d]", 7, "[ 7]"),
        ("[%.3d]", 7, "[007]"),
        ("[%08.3d]", 7, "[     007]"),
        ("[%.0d]", 0, "[]"),
        ("[%u]", minus, "[4294967289]"),
        ("[%x]", 0xBEEF, "[beef]"),
        ("[%#X]", 0xBEEF, "[0XBEEF]"),
        ("[%#10x]", 0xBEEF, "[    0xbeef]"),
        ("[%#010x]", 0xBEEF, "[0x0000beef]"),
        ("[%#x]", 0, "[0]"),
        ("[%o]", 8, "[10]"),
        ("[%#o]", 8, "[010]"),
        ("[%lld]", (-5i64) as u64, "[-5]"),
        ("[%lu]", u64::MAX, "[18446744073709551615]"),
        ("[%hd]", 0x1_8000, "[-32768]"),
        ("[%hhu]", 0x1FF, "[255]"),
        ("[%c]", 65, "[A]"),
        ("[%3c]", 65, "[  A]"),
        ("[%s]", 1, "[word]"),
        ("[%6s]", 1, "[  word]"),
        ("[%-6s]", 1, "[word  ]"),
        ("[%.2s]", 1, "[wo]"),
        ("[%s]", 0, "[(null)]"),
        ("[%p]", 0x3000_0000_1000, "[0x300000001000]"),
        ("[%p]", 0, "[(nil)]"),
    ] {
        assert_eq!(said(format, &[value]), (want.into(), 1), "{format}");
    }
}

#[test]
fn real_numbers() {
    for (format, value, want) in [
        ("%f", 1.5, "1.500000"),
        ("%.0f", 2.5, "2"),
        ("%#.0f", 2.0, "2."),
        ("%8.2f", -5.14159, "   -5.14"),
        ("%08.2f", -5.14159, "-0005.14"),
        ("%+f", 0.0, "+0.000000"),
        ("%f", -0.0, "-0.000000"),
        ("%e", 12345.678, "1.234568e+04"),
        ("%.2E", 0.00012345, "1.23E-04"),
        ("%e", 1e300, "1.000000e+300"),
        ("%g", 100000.0, "100000"),
        ("%g", 1000000.0, "1e+06"),
        ("%g", 0.0001, "0.0001"),
        ("%g", 0.00001, "1e-05"),
        ("%g", 0.5, "0.5"),
        ("%#g", 0.5, "0.500000"),
        ("%.3g", 999.9, "1e+03"),
        ("%g", 0.0, "0"),
        ("%a", 1.0, "0x1p+0"),
        ("%a", 0.5, "0x1p-1"),
        ("%a", 3.0, "0x1.8p+1"),
        ("%.1a", 1.96875, "0x2.0p+0"),
        ("%A", 0.1, "0X1.999999999999AP-4"),
        ("%a", 0.0, "0x0p+0"),
        ("%5f", f64::INFINITY, "  inf"),
        ("%05f", f64::NEG_INFINITY, " -inf"),
        ("%F", f64::NAN, "NAN"),
    ] {
        assert_eq!(said(format, &[value.to_bits()]).0, want, "{format} of {value}");
    }
}

#[test]
fn stars_percent_signs_and_what_is_no_conversion() {
    assert_eq!(said("%*d|%-*d|", &[4, 7, 3, 8]), ("   7|8  |".into(), 4));
    assert_eq!(said("%.*f", &[1, 2.25f64.to_bits()]), ("2.2".into(), 2));
    assert_eq!(said("%*d|", &[-4i32 as u32 as u64, 7]), ("7   |".into(), 2));
    assert_eq!(said("100%% %y %lq %", &[]), ("100% %y %lq %".into(), 0));
    assert_eq!(said("%.l.d %lld", &[5]), ("%.l.d 5".into(), 1));
    assert!(text(b"%d", &mut List(vec![], &[])).is_err());
}

#[test]
fn arguments_behind_the_thirty_second_are_left_as_they_stand() {
    let format = "%d".repeat(34);
    let (text, taken) = said(&format, &[1; 34]);
    assert_eq!((text, taken), ("1".repeat(32) + "%d%d", 32));
}
