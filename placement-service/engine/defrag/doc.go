// Package defrag tells how much free room the usual demand cannot use, on cards, nodes and in all, and plans the moves
// of running allocations after which a request fits, each into room that is free when it is made. It is as pure as the
// engine: times come in as numbers. Making the moves and knowing what can be moved do not belong here.
package defrag
