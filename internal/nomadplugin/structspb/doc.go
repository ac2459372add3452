// Package structspb holds the generated wire types of the values that several services share: attributes, statistics and the recoverable error. Nothing is written here by hand:
// the source is nomadplugin/proto, and conversions belong to the packages that use the types.
package structspb
