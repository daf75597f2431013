//! Placeholder head, replaced by the first slice.
