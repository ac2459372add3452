// Package potential scores where a request goes by what each node could still take of the expected demand: the node
// whose potential drops least wins. It holds what is free on a node and what a request asks of one, the observed
// demand, the scorers (ours, and the published ones that it is measured against), and an index that finds the best
// node without looking at all of them. Names of nodes and cards, filters, reservations and traces do not belong here.
package potential
