// Package gang places the members of a gang over nodes, racks and zones, all of them or none, near each other and where
// it costs later gangs least. It knows nodes as numbers of free cards in parts; which nodes come into question, which
// cards of a part are taken, queues and quotas do not belong here.
package gang
