// Package hclspec holds the generated wire types of the messages that describe a configuration schema. Nothing is written here by hand:
// the source is nomadplugin/proto, and conversions belong to the packages that use the types.
package hclspec
