// Package version holds the version of this build, set by the linker. Nothing else lives here.
package version

// Version is a semantic version. Nomad reads it to choose between two binaries of one plugin, so that it must
// always parse as one.
var Version = "0.1.0-dev"
