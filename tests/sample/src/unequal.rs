//! What a failed comparison of thousands of values says: the first that differs, instead of all.

use std::fmt::Debug;

/// The first value that two lists, or whatever else prints its values, do not share: its number among all
/// that are printed, and both of them.
///
/// ```
/// let said = sample::difference(&[[1.0, 2.5], [3.0, 4.0]], &[[1.0, 2.5], [-3.0, 4.0]]);
/// assert_eq!(said, "value 2 of 4 is 3.0, not -3.0");
/// ```
pub fn difference(got: &(impl Debug + ?Sized), want: &(impl Debug + ?Sized)) -> String {
    let (got, want) = (format!("{got:?}"), format!("{want:?}"));
    let (got, want) = (values(&got), values(&want));
    let first = got.iter().zip(&want).position(|(got, want)| got != want);
    match (first, got.len() == want.len()) {
        (Some(at), true) => format!("value {at} of {} is {}, not {}", got.len(), got[at], want[at]),
        (Some(at), false) => {
            format!("value {at} is {}, not {}; {} values, not {}", got[at], want[at], got.len(), want.len())
        }
        (None, false) => format!("{} values, not {}, the same as far as both go", got.len(), want.len()),
        (None, true) => format!("{} values, which are printed alike: bits of what is no number", got.len()),
    }
}

/// What is printed between brackets, commas and spaces.
fn values(text: &str) -> Vec<&str> {
    text.split([' ', ',', '[', ']', '(', ')', '{', '}']).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn lengths_and_signs_of_zeros_are_differences() {
        assert_eq!(difference(&[0.0f32, 1.0], &[-0.0f32, 1.0]), "value 0 of 2 is 0.0, not -0.0");
        let short = difference(&vec![vec![1u32, 2]], &vec![vec![1u32, 2], vec![3]]);
        assert_eq!(short, "2 values, not 3, the same as far as both go");
        assert_eq!(difference(&[1, 5], &[1, 2, 3]), "value 1 is 5, not 2; 2 values, not 3");
        assert!(difference(&[f32::NAN], &[f32::NAN]).starts_with("1 values, which are printed alike"));
    }
}
