// Package links chooses which cards of one node a task takes, by how they are connected: the links between the cards,
// the network card on the same PCIe switch and the NUMA node. The search is exact. What is free, which node comes into
// question and how links are found out does not belong here.
package links
