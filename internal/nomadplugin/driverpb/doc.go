// Package driverpb holds the generated wire types of the task driver service and its messages. Nothing is written here by hand:
// the source is nomadplugin/proto, and conversions belong to the packages that use the types.
package driverpb
