// Package preempt finds what has to be evicted so that a job of higher priority fits: the smallest set of running
// allocations under the operator's rules, proved by the engine on the cluster without them, or the reason why no set
// would do. It is as pure as the engine: times come in as numbers. Carrying an eviction out, keeping books about it and
// reading the cluster do not belong here.
package preempt
