//! Paged keys and values of one layer: their shape, the memory they live in, and views of slab and page
//! table.

use super::{BufRef, Device, DeviceMem, KvLayout, MatLayout, MatRef};
use crate::{Error, Result};

/// Keys and values of one layer.
#[derive(Debug)]
pub struct Slab<M> {
    k: M,
    v: M,
    layout: KvLayout,
}

impl<M: DeviceMem> Slab<M> {
    /// Bytes of the key and the value slab.
    ///
    /// # Errors
    /// `Shape` for sizes beyond numbers, and pages without positions.
    pub fn bytes<D: Device<Mem = M>>(layout: &KvLayout) -> Result<(usize, usize)> {
        layout.check()?;
        Ok(D::kv_bytes(layout))
    }

    /// Takes two allocations of at least [`Slab::bytes`].
    ///
    /// # Errors
    /// `Shape` where they are smaller, and as [`Slab::bytes`].
    pub fn new<D: Device<Mem = M>>(k: M, v: M, layout: KvLayout) -> Result<Self> {
        let slab = Self { k, v, layout };
        slab.view().check::<D>("kv slab")?;
        Ok(slab)
    }
}

impl<M> Slab<M> {
    /// To read.
    pub fn view(&self) -> KvRef<'_, M> {
        KvRef { k: &self.k, v: &self.v, layout: self.layout }
    }

    /// To write.
    pub fn view_mut(&mut self) -> KvMut<'_, M> {
        KvMut(self.view())
    }
}

/// One layer's slab, to read; the order inside a page is the backend's secret.
#[derive(Debug)]
pub struct KvRef<'a, M> {
    k: &'a M,
    v: &'a M,
    layout: KvLayout,
}

copied!([M] KvRef<'_, M>);

impl<'a, M> KvRef<'a, M> {
    /// Keys.
    pub fn k(&self) -> &'a M {
        self.k
    }

    /// Values.
    pub fn v(&self) -> &'a M {
        self.v
    }

    /// Shape.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }
}

impl<'a, M: DeviceMem> KvRef<'a, M> {
    /// The same slabs seen in another shape.
    ///
    /// # Errors
    /// `Shape` where that takes more bytes than there are.
    pub fn at<D: Device<Mem = M>>(self, layout: KvLayout) -> Result<Self> {
        let other = Self { layout, ..self };
        other.check::<D>("kv slab")?;
        Ok(other)
    }

    /// Whether both slabs hold the shape in the order of `D`. Ops ask again for their own device: a slab may
    /// have been made for another one with the same memory.
    ///
    /// # Errors
    /// `Shape`, naming `op`, where they do not.
    pub(crate) fn check<D: Device<Mem = M>>(&self, op: &'static str) -> Result<()> {
        let (k_bytes, v_bytes) = Slab::<M>::bytes::<D>(&self.layout)?;
        for (got, want) in [(self.k.bytes(), k_bytes), (self.v.bytes(), v_bytes)] {
            if got < want {
                return Err(Error::Shape { op, what: "bytes of the kv slab", got, want });
            }
        }
        Ok(())
    }

    /// Keys and values `[slots, k_dim]`, `[slots, v_dim]` of a layout of one head and one position per page.
    ///
    /// # Errors
    /// `Internal` for any other layout, and for codes: the order inside a page is the backend's secret.
    pub fn rows(self) -> Result<[MatRef<'a, M>; 2]> {
        let KvLayout { pages, page_size, kv_heads, k_dim, v_dim, format } = self.layout;
        let Some(dtype) = format.float().filter(|_| (page_size, kv_heads) == (1, 1)) else {
            return Err(Error::internal(
                "rows of a slab with pages of several positions or heads, or with scales",
            ));
        };
        let rows = |mem, cols| MatRef::new(mem, MatLayout::dense(pages, cols, dtype));
        Ok([rows(self.k, k_dim)?, rows(self.v, v_dim)?])
    }
}

/// One layer's slab, to write.
#[derive(Debug)]
pub struct KvMut<'a, M>(KvRef<'a, M>);

impl<'a, M> KvMut<'a, M> {
    /// Shape.
    pub fn layout(&self) -> KvLayout {
        self.0.layout
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> KvMut<'_, M> {
        KvMut(self.0)
    }

    /// A read-only view.
    pub fn as_ref(&self) -> KvRef<'_, M> {
        self.0
    }
}

impl<'a, M: DeviceMem> KvMut<'a, M> {
    /// As [`KvRef::at`].
    ///
    /// # Errors
    /// As [`KvRef::at`].
    pub fn at<D: Device<Mem = M>>(self, layout: KvLayout) -> Result<Self> {
        Ok(Self(self.0.at::<D>(layout)?))
    }
}

/// Page table: row `r` of `[rows, stride]` lists the pages of a sequence, position `p` lies in entry
/// `p / page_size`.
#[derive(Debug)]
pub struct Table<'a, M> {
    /// `[rows * stride]` page numbers.
    pub pages: BufRef<'a, M, u32>,
    /// Entries per row.
    pub stride: usize,
}

copied!([M] Table<'_, M>);
