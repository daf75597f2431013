//! Ranks on devices of their own: exchanges on the device.
//!
//! `peers` is the communicator of ranks that reach each other's memory, by own kernels. By NVIDIA's NCCL, an
//! option that nothing ever needs: `nccl` finds the library and has its functions, `group` is a rank's
//! communicator, `link` holds its place in NCCL. `roll` is how either learns that a rank is missing, `watch`
//! how waits for the device look at that.

pub(crate) mod group;
mod link;
pub(crate) mod nccl;
pub(crate) mod peers;
mod roll;
pub(crate) mod watch;
