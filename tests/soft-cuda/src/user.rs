//! User objects: something of the program's that lives as long as graphs refer to it.
//!
//! References are counted; graphs and executables hold some of them. When the last one goes, the program's
//! destructor is called on a thread of the driver's, since it may take locks that the caller holds.

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::called;
use crate::code::{Code, Result};
use crate::state::{Driver, Id};
use crate::work::HostPointer;

/// A destructor of the program.
pub type Destructor = unsafe extern "C" fn(*mut c_void);

/// A user object.
#[derive(Debug)]
pub struct UserObject {
    destroy: Destructor,
    data: HostPointer,
    references: u64,
}

/// References that a graph or an executable holds, by object.
pub type Held = BTreeMap<Id, u64>;

/// `cuUserObjectCreate`: the caller has so many references.
pub fn create(d: &mut Driver, destroy: Destructor, data: HostPointer, references: u32) -> Result<Id> {
    if references == 0 || references > i32::MAX as u32 {
        return Err(Code::INVALID_VALUE);
    }
    let id = d.id();
    d.objects.insert(id, UserObject { destroy, data, references: references.into() });
    Ok(id)
}

/// Adds references.
pub fn retain(d: &mut Driver, id: Id, count: u64) -> Result {
    let object = d.objects.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
    if count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    object.references += count;
    Ok(())
}

/// Gives references back; the last one calls the destructor.
pub fn release(d: &mut Driver, id: Id, count: u64) -> Result {
    let object = d.objects.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
    if count == 0 || count > object.references {
        return Err(Code::INVALID_VALUE);
    }
    object.references -= count;
    if object.references > 0 {
        return Ok(());
    }
    let Some(UserObject { destroy, data, .. }) = d.objects.remove(&id) else { return Ok(()) };
    let body = move || {
        let data = data;
        // SAFETY: the program handed in the destructor with this argument, to be called once when nothing
        // refers to the object.
        called::as_host_function(|| unsafe { destroy(data.0.cast()) });
    };
    match std::thread::Builder::new().name("user object".into()).spawn(body) {
        Ok(_) => Ok(()),
        Err(_) => Err(Code::OUT_OF_MEMORY),
    }
}

/// More references of an object for a holder: taken over from the caller (`moved`) or new ones.
pub fn hold(d: &mut Driver, held: &mut Held, id: Id, count: u64, moved: bool) -> Result {
    let known = d.objects.get(&id).ok_or(Code::INVALID_VALUE)?;
    if count == 0 || moved && count > known.references {
        return Err(Code::INVALID_VALUE);
    }
    if !moved {
        retain(d, id, count)?;
    }
    *held.entry(id).or_default() += count;
    Ok(())
}

/// The same references for one more holder.
pub fn share(d: &mut Driver, held: &Held) {
    for (&id, &count) in held {
        // A holder's references keep the object alive.
        let _ = retain(d, id, count);
    }
}

/// A holder goes.
pub fn drop_all(d: &mut Driver, held: Held) {
    for (id, count) in held {
        let _ = release(d, id, count);
    }
}
