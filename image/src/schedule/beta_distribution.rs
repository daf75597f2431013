//! Quantiles of the beta distribution with both parameters 0.6, which place the sigmas of arXiv:2407.12173.
//!
//! The distribution function is the regularized incomplete beta function by its continued fraction; quantiles
//! are found by halving an interval, which takes a bounded number of steps.

/// Both parameters.
const SHAPE: f64 = 0.6;
/// `gamma(0.6)^2 / gamma(1.2)`.
const COMPLETE: f64 = 2.415_344_208_002_471_4;

/// Share of the distribution below `x`.
fn below(x: f64) -> f64 {
    // By symmetry the fraction is evaluated where it converges fast.
    if x > 0.5 { 1.0 - lower(1.0 - x) } else { lower(x) }
}

fn lower(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    (x * (1.0 - x)).powf(SHAPE) / (SHAPE * COMPLETE) * fraction(x)
}

/// The continued fraction by Lentz's method.
fn fraction(x: f64) -> f64 {
    let away = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut d = 1.0 / away(1.0 - 2.0 * SHAPE * x / (SHAPE + 1.0));
    let (mut c, mut value) = (1.0, d);
    for m in (1..200).map(f64::from) {
        let end = SHAPE + 2.0 * m;
        let even = m * (SHAPE - m) * x / ((end - 1.0) * end);
        let odd = -(SHAPE + m) * (2.0 * SHAPE + m) * x / (end * (end + 1.0));
        for term in [even, odd] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            value *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-16 {
            break;
        }
    }
    value
}

/// The `x` in 0 to 1 that a share of the distribution lies below.
pub(crate) fn quantile(share: f64) -> f64 {
    if share > 0.5 {
        return 1.0 - quantile(1.0 - share);
    }
    let (mut low, mut high) = (0.0, 0.5);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    high * f64::from(share > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integral of `x^-0.4 (1 - x)^-0.4` with `x = u^5`, by Simpson's rule.
    fn integral(x: f64) -> f64 {
        let (count, end) = (20_000, x.powf(0.2));
        let f = |u: f64| 5.0 * u * u * (1.0 - u.powi(5)).powf(-0.4);
        let sum: f64 = (0..count)
            .map(|i| {
                let at = |part: f64| (f64::from(i) + part) / f64::from(count) * end;
                f(at(0.0)) + 4.0 * f(at(0.5)) + f(at(1.0))
            })
            .sum();
        sum * end / f64::from(count) / 6.0 / COMPLETE
    }

    #[test]
    fn quantiles_are_those_of_the_integral() {
        for share in [1e-6, 0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.9] {
            let x = quantile(share);
            assert!((integral(x) - share).abs() < 1e-9, "{share}: {x} has {}", integral(x));
        }
        assert_eq!([quantile(0.0), quantile(1.0)], [0.0, 1.0]);
        assert!((quantile(0.5) - 0.5).abs() < 1e-14);
    }
}
