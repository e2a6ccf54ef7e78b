//! Tests of the demand for replicas.

mod demand_reports;
mod unmet;
