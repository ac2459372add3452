// Package jobspec reads Nomad job files: HCL 2 with Nomad's block names, variables, locals, functions and dynamic
// blocks becomes a Job of Nomad's API, the same as `nomad job run -output` prints. What follows the shape of the
// API's structs is decoded from their hcl tags, so that a newer API brings its new blocks along. Checking a job,
// filling in server-side defaults and sending it anywhere do not belong here.
package jobspec
