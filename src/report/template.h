/* template.html as the build put it into the library (cmake/embed.cmake). */
#ifndef GMA_REPORT_TEMPLATE_H
#define GMA_REPORT_TEMPLATE_H

#include <stddef.h>

extern const unsigned char gmal_report_template[];
extern const size_t gmal_report_template_size;

#endif
