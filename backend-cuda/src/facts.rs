//! Numbers that the driver states of a device: for reports.

use crate::device::Cuda;
use crate::driver;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

impl Cuda {
    /// What the driver says, by name; none where it does not answer.
    pub fn facts(&self) -> Vec<(&'static str, Option<i32>)> {
        let asked = [
            ("multiprocessors", Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            ("clock_khz", Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            ("memory_clock_khz", Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
            ("memory_bus_bits", Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
            ("l2_cache_bytes", Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            ("shared_bytes_per_block", Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            ("warp_size", Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        ];
        let answers = asked.map(|(name, attribute)| (name, self.attribute(attribute).ok()));
        std::iter::once(("driver_interface", driver::version().ok())).chain(answers).collect()
    }
}
