//! FLUX's rows: the four latents of a square, channel by channel, are one row.

use crate::graph::Grid;

/// Rows `[items * squares, channels * 4]` as latents `[items * latents, channels]`; `size` counts latents.
pub(super) fn unpacked(rows: &[f32], size: Grid, channels: usize) -> Vec<f32> {
    let (across, each) = (size.width / 2, size.pixels() * channels);
    let mut all = vec![0.0; rows.len()];
    for (item, own) in rows.chunks_exact(each.max(1)).enumerate() {
        for (square, row) in own.chunks_exact(4 * channels.max(1)).enumerate() {
            let (y, x) = (square / across * 2, square % across * 2);
            for (n, value) in row.iter().enumerate() {
                let (channel, line, column) = (n / 4, y + n % 4 / 2, x + n % 2);
                all[item * each + (line * size.width + column) * channels + channel] = *value;
            }
        }
    }
    all
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
    }
}
