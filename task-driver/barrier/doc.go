// Package barrier is the start barrier of gangs, from the driver's side: it tells the placement service that a task is ready
// and waits until all members of its gang are, for as long as its grant says. Deciding who the members are, and starting
// tasks, do not belong here.
package barrier
