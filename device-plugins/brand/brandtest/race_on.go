//go:build race

package brandtest

// raced tells whether the race detector watches.
const raced = true
