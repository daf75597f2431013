//! Tensor maps.

use super::entries;

entries! {}
