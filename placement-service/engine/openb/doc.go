// Package openb runs the placement scorers on the public traces of that name: the published experiment, in which a
// cluster fills up, and one in which requests come and go. It reads node and pod lists and repeats the published
// arrivals bit for bit. Scorers do not belong here, nor does anything that a running service needs.
package openb
