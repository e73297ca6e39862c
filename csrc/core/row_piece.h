#pragma once

#include "core/types.h"

namespace specfast {

// kPiece elements that are loaded and stored at once. kPiece is 1, or 8 where addresses and strides
// are multiples of 16 bytes and counts of 8.
constexpr int kWidePiece = 8;

template <class T, int kPiece>
struct alignas(kPiece == 1 ? sizeof(T) : 16) RowPiece {
  T values[kPiece];
};

template <int kPiece, class T>
SPECFAST_HD RowPiece<T, kPiece> get_piece(const T* from) {
  return *reinterpret_cast<const RowPiece<T, kPiece>*>(from);
}
template <class T, int kPiece>
SPECFAST_HD void put_piece(T* to, const RowPiece<T, kPiece>& piece) {
  *reinterpret_cast<RowPiece<T, kPiece>*>(to) = piece;
}

}  // namespace specfast
