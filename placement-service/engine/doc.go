// Package engine decides where the accelerator asks of a job run: a snapshot of the cluster and a request go in, a
// decision or a refusal with its reason comes out, by the stages PreScore, Filter, Score, PostScore and Bind with
// plugins for the middle ones. It is pure: the same input gives the same output, so that every decision can be
// replayed. Reading the cluster, keeping reservations, clocks, queues and the text of jobs do not belong here.
package engine
