/* CRC-32 of small data: the polynomial of PNG and zlib, and Castagnoli's of TFRecord files, both reflected.
 * crc = ~gmal_crc32_more(polynomial, GMAL_CRC32_START, data, size); data may come in pieces. */
#ifndef GMA_IO_CRC32_H
#define GMA_IO_CRC32_H

#include <stddef.h>
#include <stdint.h>

#define GMAL_CRC32 0xedb88320u
#define GMAL_CRC32C 0x82f63b78u
#define GMAL_CRC32_START 0xffffffffu

static inline uint32_t gmal_crc32_more(uint32_t polynomial, uint32_t crc, const void *data, size_t size) {
    const unsigned char *p = data;
    for (size_t i = 0; i < size; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return crc;
}

#endif
