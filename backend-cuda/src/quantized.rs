//! What the last launch of a stream left next to its output.

use crate::CudaMem;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::{Elem, MatView};

/// Rows that the stream's last launch stored as bytes, too.
#[derive(Debug)]
pub(crate) struct QuantizedOutput {
    /// The rows.
    pub of: MatView,
    /// Their memory: while this is here no other allocation gets the address.
    pub _mem: CudaMem,
    /// Their element type.
    pub elem: Elem,
    /// Their codes and scales.
    pub codes: Codes,
}
