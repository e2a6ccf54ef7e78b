//! Ids: small integers that identify jobs, tenants, classes, models, pools, replicas and keys.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name($inner);

        impl $name {
            pub const fn new(number: $inner) -> Self {
                Self(number)
            }

            /// The number, for use as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            fn from(index: usize) -> Self {
                Self(<$inner>::try_from(index).expect("more rows than an id can number"))
            }
        }

        impl From<$name> for usize {
            fn from(id: $name) -> Self {
                id.index()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// One request after admission; unique for the life of the process.
    JobId(u64)
);
id!(
    /// The tenant that work is done for.
    TenantId(u32)
);
id!(
    /// A latency class.
    ClassId(u32)
);
id!(
    /// A public model name.
    ModelId(u32)
);
id!(
    /// A pool of replicas that are alike.
    PoolId(u32)
);
id!(
    /// A replica: one engine endpoint.
    ReplicaId(u32)
);
id!(
    /// A pool group of the policy in force, by its index in the placement.
    GroupIndex(u32)
);
id!(
    /// A class of a pool group, by its index in the order of service.
    ClassIndex(u32)
);
id!(
    /// A pool set of a pool group, by its index in the group.
    PoolSetIndex(u32)
);
id!(
    /// An API key, or another credential that limits can be set for.
    KeyId(u32)
);
