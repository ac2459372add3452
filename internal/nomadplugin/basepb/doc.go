// Package basepb holds the generated wire types of the base service: name, version and configuration of a plugin. Nothing is written here by hand:
// the source is nomadplugin/proto, and conversions belong to the packages that use the types.
package basepb
