//! Classifier-free guidance and where image to image begins. One picture's values depend on that picture
//! alone.

use crate::error::{Error, Result, same_length};

/// Combines a model's outputs without and with the prompt (classifier-free guidance, arXiv:2207.12598).
///
/// `unconditional + scale * (conditional - unconditional)`, element by element.
///
/// # Errors
/// `Argument` for slices of two lengths and a scale that is not finite.
///
/// ```
/// assert_eq!(engraft_image::guide(&[1.0, 0.0], &[2.0, 1.0], 3.0)?, [4.0, 3.0]);
/// # Ok::<(), engraft_image::Error>(())
/// ```
pub fn guide(unconditional: &[f32], conditional: &[f32], scale: f32) -> Result<Vec<f32>> {
    same_length("the conditional output", conditional.len(), unconditional.len())?;
    if !scale.is_finite() {
        return Err(Error::argument("the guidance scale", scale, "a finite number"));
    }
    Ok(unconditional.iter().zip(conditional).map(|(u, c)| u + scale * (c - u)).collect())
}

/// Brings the standard deviation of a guided output back towards that of the conditional one
/// (arXiv:2305.08891, section 3.4), picture by picture.
///
/// `share * guided * std(conditional) / std(guided) + (1 - share) * guided`, with the standard deviation of a
/// sample (`n - 1`) over all values of a picture. `guided`: `[images, ...]`, changed in place; `conditional`:
/// as `guided`; `share`: 0 to 1. A guided output without any deviation stays as it is.
///
/// # Errors
/// `Argument` for other lengths, a number of images that does not divide the length, another share.
pub fn rescale_guidance(guided: &mut [f32], conditional: &[f32], share: f64, images: usize) -> Result<()> {
    same_length("the conditional output", conditional.len(), guided.len())?;
    if !(0.0..=1.0).contains(&share) {
        return Err(Error::argument("guidance_rescale", share, "0 to 1"));
    }
    let of_image = values_of_image(guided.len(), images)?;
    for (guided, conditional) in guided.chunks_mut(of_image).zip(conditional.chunks(of_image)) {
        let (have, want) = (deviation(guided), deviation(conditional));
        if have > 0.0 {
            let factor = share * want / have + (1.0 - share);
            guided.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
        }
    }
    Ok(())
}

/// Values of one of so many images; at least 1, so that chunks of it can be taken.
pub(crate) fn values_of_image(values: usize, images: usize) -> Result<usize> {
    match images > 0 && values.is_multiple_of(images) {
        true => Ok((values / images).max(1)),
        false => Err(Error::argument("the number of images", images, format!("a divisor of {values}"))),
    }
}

fn deviation(values: &[f32]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares: f64 = values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    (squares / (count - 1.0).max(1.0)).sqrt()
}

/// Steps that image to image leaves out: those before the noise of the given strength.
///
/// `max(steps - min(floor(steps * strength), steps), 0)`; [`Scheduler::begin_at`](crate::Scheduler::begin_at)
/// takes it.
///
/// # Errors
/// `Argument` for a strength outside 0 to 1.
///
/// ```
/// assert_eq!(engraft_image::skipped_steps(10, 0.75)?, 3);
/// # Ok::<(), engraft_image::Error>(())
/// ```
pub fn skipped_steps(steps: usize, strength: f64) -> Result<usize> {
    if !(0.0..=1.0).contains(&strength) {
        return Err(Error::argument("strength", strength, "0 to 1"));
    }
    Ok(steps - ((steps as f64 * strength) as usize).min(steps))
}

/// The same as pipelines of flow models count them: `steps - steps * strength`, rounded down.
///
/// # Errors
/// `Argument` for a strength outside 0 to 1.
///
/// ```
/// assert_eq!(engraft_image::skipped_flow_steps(10, 0.75)?, 2);
/// # Ok::<(), engraft_image::Error>(())
/// ```
pub fn skipped_flow_steps(steps: usize, strength: f64) -> Result<usize> {
    if !(0.0..=1.0).contains(&strength) {
        return Err(Error::argument("strength", strength, "0 to 1"));
    }
    let all = steps as f64;
    Ok((all - (all * strength).min(all)) as usize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_flows_are_rounded_the_other_way() {
        for (steps, strength, of_flow, others) in [
            (5, 0.75, 1, 2),
            (10, 0.75, 2, 3),
            (4, 0.5, 2, 2),
            (4, 1.0, 0, 0),
            (4, 0.0, 4, 4),
            (3, 0.1, 2, 3),
        ] {
            assert_eq!(skipped_flow_steps(steps, strength).unwrap(), of_flow, "{steps} {strength}");
            assert_eq!(skipped_steps(steps, strength).unwrap(), others, "{steps} {strength}");
        }
        assert!(skipped_flow_steps(5, 1.5).is_err() && skipped_flow_steps(5, f64::NAN).is_err());
    }

    #[test]
    fn guidance_is_linear_in_its_scale() {
        let (u, c) = ([0.5f32, -1.0, 2.0], [1.5f32, -2.0, 2.0]);
        assert_eq!(guide(&u, &c, 0.0).unwrap(), u);
        assert_eq!(guide(&u, &c, 1.0).unwrap(), c);
        assert_eq!(guide(&u, &c, 7.5).unwrap(), [8.0, -8.5, 2.0]);
        let error = guide(&u, &c[..2], 1.0).unwrap_err().to_string();
        assert!(error.contains("is 2") && error.contains("3 values"), "{error}");
        assert!(guide(&u, &c, f32::NAN).is_err());
    }

    #[test]
    fn rescaling_gives_the_deviation_of_each_picture() {
        let conditional = [1.0f32, -1.0, 3.0, 0.5, 10.0, 20.0, 40.0, 30.0];
        let guided = conditional.map(|x| 4.0 * x + 1.0);
        let mut got = guided;
        rescale_guidance(&mut got, &conditional, 1.0, 2).unwrap();
        for image in 0..2 {
            let [a, b] = [&got, &conditional].map(|all| deviation(&all[image * 4..][..4]));
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        let mut alone = [guided[0], guided[1], guided[2], guided[3]];
        rescale_guidance(&mut alone, &conditional[..4], 1.0, 1).unwrap();
        assert_eq!(alone, got[..4]);
        let mut same = guided;
        rescale_guidance(&mut same, &conditional, 0.0, 2).unwrap();
        assert_eq!(same, guided);
        let mut flat = [2.0f32; 8];
        rescale_guidance(&mut flat, &conditional, 0.7, 1).unwrap();
        assert_eq!(flat, [2.0; 8]);
        for (share, images) in [(1.5, 2), (f64::NAN, 2), (0.5, 3), (0.5, 0)] {
            assert!(rescale_guidance(&mut flat, &conditional, share, images).is_err());
        }
    }

    #[test]
    fn strength_leaves_steps_out() {
        let got = [(10, 0.0), (10, 0.29), (10, 0.5), (10, 1.0), (3, 0.34), (0, 0.5)]
            .map(|(steps, strength)| skipped_steps(steps, strength).unwrap());
        assert_eq!(got, [10, 8, 5, 0, 2, 0]);
        assert!(skipped_steps(5, 1.01).is_err() && skipped_steps(5, f64::NAN).is_err());
    }
}
