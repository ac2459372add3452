// Package admission reads the accelerator asks out of a job, checks them, and writes a decision back into it: nodes
// that may be used, device blocks and grants. It works on the generic JSON tree of the job, so that fields which
// this code does not know survive, and strips what it wrote before, so that a job can pass any number of times.
// Deciding where a job runs, keeping reservations and talking to Nomad do not belong here.
package admission
