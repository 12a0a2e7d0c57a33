//! What protects edges from agents and tenants, and sessions from others: certificates, encrypted wires, roles, quotas,
//! and keys that stay where they belong.

mod admin_tls;
mod encrypted;
mod hostile;
mod peers;
mod rogues;
mod secrets;
