//! The wire types and clients of the house's gRPC packages, generated from `proto/vitriol/`.

/// Serialised descriptors of all packages, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vitriol.bin"));

pub mod engine {
    pub mod v1 {
        #![allow(clippy::all, clippy::unwrap_used)]
        tonic::include_proto!("vitriol.engine.v1");
    }
}

pub mod kvtier {
    pub mod v1 {
        #![allow(clippy::all, clippy::unwrap_used)]
        tonic::include_proto!("vitriol.kvtier.v1");
    }
}

pub mod oom_shield {
    pub mod v1 {
        #![allow(clippy::all, clippy::unwrap_used)]
        tonic::include_proto!("vitriol.oom_shield.v1");
    }
}

pub mod persist {
    pub mod v1 {
        #![allow(clippy::all, clippy::unwrap_used)]
        tonic::include_proto!("vitriol.persist.v1");
    }
}

pub mod status {
    pub mod v1 {
        #![allow(clippy::all, clippy::unwrap_used)]
        tonic::include_proto!("vitriol.status.v1");
    }
}
