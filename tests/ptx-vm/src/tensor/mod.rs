//! Pure functions, see the crate's head.
