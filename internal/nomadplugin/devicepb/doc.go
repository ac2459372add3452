// Package devicepb holds the generated wire types of the device plugin service and its messages. Nothing is written here by hand:
// the source is nomadplugin/proto, and conversions belong to the packages that use the types.
package devicepb
