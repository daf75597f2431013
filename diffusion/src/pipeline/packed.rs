//! FLUX's rows: the four latents of a square, channel by channel, are one row.

use crate::graph::Grid;

/// Rows `[items * squares, channels * 4]` as latents `[items * latents, channels]`; `size` counts latents.
pub(super) fn unpacked(rows: &[f32], size: Grid, channels: usize) -> Vec<f32> {
    let mut all = vec![0.0; rows.len()];
    for_each_value(rows.len(), size, channels, |packed, latent| all[latent] = rows[packed]);
    all
}

/// The other way round.
pub(super) fn packed(latents: &[f32], size: Grid, channels: usize) -> Vec<f32> {
    let mut all = vec![0.0; latents.len()];
    for_each_value(latents.len(), size, channels, |packed, latent| all[packed] = latents[latent]);
    all
}

/// Of every value its place among rows of squares, and that among latents.
fn for_each_value(values: usize, size: Grid, channels: usize, mut pair: impl FnMut(usize, usize)) {
    let (across, each) = ((size.width / 2).max(1), (size.pixels() * channels).max(1));
    for at in 0..values {
        let (item, square, n) = (at / each, at % each / (4 * channels), at % (4 * channels));
        let (y, x) = (square / across * 2, square % across * 2);
        let (channel, line, column) = (n / 4, y + n % 4 / 2, x + n % 2);
        pair(at, item * each + (line * size.width + column) * channels + channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_go_where_they_are() {
        // Two channels: ten times the latent's number, the second one more.
        let row = |first: [u8; 4]| {
            first.map(|n| f32::from(10 * n)).into_iter().chain(first.map(|n| f32::from(10 * n + 1)))
        };
        let rows: Vec<f32> = row([0, 1, 4, 5]).chain(row([2, 3, 6, 7])).collect();
        let latents = unpacked(&rows.repeat(2), Grid { height: 2, width: 4 }, 2);
        let want: Vec<f32> = (0..8u8).flat_map(|n| [f32::from(10 * n), f32::from(10 * n + 1)]).collect();
        assert_eq!(latents, want.repeat(2));
        assert_eq!(packed(&latents, Grid { height: 2, width: 4 }, 2), rows.repeat(2));
    }
}
