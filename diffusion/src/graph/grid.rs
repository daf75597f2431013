//! Pixels as rows, and which of them a convolution reads.

use engraft_core::mem::NO_ROW;

/// The rows of a picture: `height * width` pixels, line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Lines.
    pub height: usize,
    /// Pixels of a line.
    pub width: usize,
}

impl Grid {
    /// Pixels.
    pub fn pixels(self) -> usize {
        self.height.saturating_mul(self.width)
    }

    /// Twice as high and wide.
    pub fn doubled(self) -> Self {
        Self { height: self.height.saturating_mul(2), width: self.width.saturating_mul(2) }
    }
}

/// How a convolution of square kernels goes over its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stride {
    /// Pixels between what neighbouring outputs read; at least 1.
    pub step: usize,
    /// Lines of zeros above, and columns of zeros left of the input.
    pub before: usize,
    /// Below and right of it.
    pub after: usize,
}

impl Stride {
    /// Every pixel, as much in the middle of the kernel as it can be: outputs as large as inputs for odd
    /// kernels.
    pub fn same(kernel: usize) -> Self {
        Self { step: 1, before: kernel / 2, after: kernel / 2 }
    }
}

/// What a convolution reads: the input `from`, seen as large as `seen` (nearest neighbours), by a square
/// kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Lines and columns of the kernel.
    pub kernel: usize,
    /// How it goes over the input.
    pub stride: Stride,
    /// The input.
    pub from: Grid,
    /// The size that it is seen in.
    pub seen: Grid,
}

impl Window {
    /// Taps of a kernel.
    pub fn taps(&self) -> usize {
        self.kernel * self.kernel
    }

    /// What comes out: `floor((seen + before + after - kernel) / step) + 1` lines, nothing where the kernel
    /// is larger than its input.
    pub fn outputs(&self) -> Grid {
        let Stride { step, before, after } = self.stride;
        let along =
            |n: usize| (n + before + after).checked_sub(self.kernel).map_or(0, |n| n / step.max(1) + 1);
        Grid { height: along(self.seen.height), width: along(self.seen.width) }
    }

    /// The rows that the outputs of `items` pictures read, tap by tap, [`NO_ROW`] where that is a zero:
    /// `[items * outputs * taps]`.
    pub fn rows(&self, items: usize) -> Vec<u32> {
        let (to, from, seen) = (self.outputs(), self.from, self.seen);
        let place = |at: usize, tap: usize, most: usize| {
            (at * self.stride.step + tap).checked_sub(self.stride.before).filter(|at| *at < most)
        };
        let mut rows = Vec::with_capacity(items * to.pixels() * self.taps());
        for first in (0..items).map(|item| item * from.pixels()) {
            for (y, x) in (0..to.height).flat_map(|y| (0..to.width).map(move |x| (y, x))) {
                for (dy, dx) in (0..self.kernel).flat_map(|dy| (0..self.kernel).map(move |dx| (dy, dx))) {
                    let pixel = place(y, dy, seen.height).zip(place(x, dx, seen.width));
                    rows.push(pixel.map_or(NO_ROW, |(line, column)| {
                        let line = line * from.height / seen.height;
                        (first + line * from.width + column * from.width / seen.width) as u32
                    }));
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: u32 = NO_ROW;

    #[test]
    fn zeros_are_around_the_picture_and_pictures_do_not_touch() {
        let grid = Grid { height: 2, width: 2 };
        let window = Window { kernel: 3, stride: Stride::same(3), from: grid, seen: grid };
        assert_eq!(window.outputs(), grid);
        let rows = window.rows(2);
        assert_eq!(rows[..9], [NO, NO, NO, NO, 0, 1, NO, 2, 3]);
        assert_eq!(rows[7 * 9..], [4, 5, NO, 6, 7, NO, NO, NO, NO]);
    }

    #[test]
    fn strides_pad_where_they_say() {
        let from = Grid { height: 5, width: 4 };
        let stride = Stride { step: 2, before: 0, after: 1 };
        let window = Window { kernel: 3, stride, from, seen: from };
        assert_eq!(window.outputs(), Grid { height: 2, width: 2 });
        assert_eq!(window.rows(1)[9..18], [2, 3, NO, 6, 7, NO, 10, 11, NO]);
        let even = Window { stride: Stride { step: 2, before: 1, after: 1 }, ..window };
        assert_eq!(even.outputs(), Grid { height: 3, width: 2 });
        let small = Grid { height: 1, width: 1 };
        let none =
            Window { kernel: 3, stride: Stride { step: 1, before: 0, after: 0 }, from: small, seen: small };
        assert_eq!(none.outputs().pixels(), 0);
    }

    #[test]
    fn pixels_are_seen_larger_by_nearest_neighbours() {
        let (from, seen) = (Grid { height: 2, width: 3 }, Grid { height: 3, width: 5 });
        let window = Window { kernel: 1, stride: Stride::same(1), from, seen };
        // 0, 0.6, 1.2, 1.8, 2.4 and 0, 0.67, 1.33, each rounded down.
        assert_eq!(window.rows(1), [0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5]);
    }
}
