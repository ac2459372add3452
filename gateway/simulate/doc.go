// Package simulate drives the gateway's own choice of backends over recorded traffic on a virtual clock, and holds the
// figures that the choice must reach: all of it is tests. The choice itself is gateway/balance.
package simulate
