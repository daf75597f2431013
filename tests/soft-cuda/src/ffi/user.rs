//! User objects and the graphs that hold them.

use std::ffi::c_void;

use super::arg::Out;
use super::entries;
use crate::abi::Handle;
use crate::code::Code;
use crate::state::Id;
use crate::user::{self, Destructor};
use crate::work::HostPointer;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, the only flag there is, and it must be given.
const NO_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

entries! {
    /// An object with its destructor.
    ready fn cuUserObjectCreate(
        d, object: Out<Handle>, data: *mut c_void, destroy: Option<Destructor>, references: u32, flags: u32,
    ) {
        if object.is_null() || flags != NO_SYNC {
            return Err(Code::INVALID_VALUE);
        }
        let destroy = destroy.ok_or(Code::INVALID_VALUE)?;
        object.set(user::create(d, destroy, HostPointer(data.cast()), references)?.handle())
    }

    /// More references of the caller's.
    ready fn cuUserObjectRetain(d, object: Handle, count: u32) {
        user::retain(d, Id::of(object), count.into())
    }

    /// Fewer of them.
    ready fn cuUserObjectRelease(d, object: Handle, count: u32) {
        user::release(d, Id::of(object), count.into())
    }

    /// References for a graph.
    ready fn cuGraphRetainUserObject(d, graph: Handle, object: Handle, count: u32, flags: u32) {
        if flags & !MOVE != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let id = Id::of(graph);
        let found = d.graphs.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
        let mut held = std::mem::take(&mut found.objects);
        let done = user::hold(d, &mut held, Id::of(object), count.into(), flags == MOVE);
        if let Some(found) = d.graphs.get_mut(&id) {
            found.objects = held;
        }
        done
    }

    /// Fewer references of a graph's.
    ready fn cuGraphReleaseUserObject(d, graph: Handle, object: Handle, count: u32) {
        let (id, count) = (Id::of(object), u64::from(count));
        let found = d.graphs.get_mut(&Id::of(graph)).ok_or(Code::INVALID_VALUE)?;
        let own = found.objects.get_mut(&id).filter(|own| count > 0 && **own >= count).ok_or(Code::INVALID_VALUE)?;
        *own -= count;
        if *own == 0 {
            found.objects.remove(&id);
        }
        user::release(d, id, count)
    }
}
